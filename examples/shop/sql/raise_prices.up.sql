ALTER TABLE price ADD COLUMN old_cents integer;
UPDATE price SET old_cents = cents, cents = cents + 50;
