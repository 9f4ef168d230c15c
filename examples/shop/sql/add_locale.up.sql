ALTER TABLE customer ADD COLUMN locale text;
