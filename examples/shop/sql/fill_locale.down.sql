-- The column goes with the step before this one; only its values are taken back here.
UPDATE customer SET locale = NULL;
