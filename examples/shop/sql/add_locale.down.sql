ALTER TABLE customer DROP COLUMN locale;
