UPDATE price SET cents = old_cents;
ALTER TABLE price DROP COLUMN old_cents;
