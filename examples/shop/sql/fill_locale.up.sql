UPDATE customer SET locale = CASE country WHEN 'DE' THEN 'de-DE' WHEN 'FR' THEN 'fr-FR' ELSE 'en-GB' END;
