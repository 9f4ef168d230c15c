-- Products and their full text index; "quoted" in a comment.
CREATE TABLE [odd;table] (`a;b` TEXT, "c;d" TEXT DEFAULT 'x;''y');
/* not /* nested; */
CREATE TRIGGER product_ai AFTER INSERT ON [odd;table] WHEN new.`a;b` IS NOT NULL
BEGIN
    UPDATE [odd;table] SET "c;d" = CASE WHEN new."c;d" = ';' THEN 'end' ELSE (SELECT CASE 1 WHEN 1 THEN 'END;' END) END;
    INSERT INTO log(what) VALUES ('one; END;');
END;
create temp trigger second_trigger instead of delete on v begin
    select 1; -- END;
    delete from t where old.id = id /* ; END; */ ;
end;

REPLACE INTO log(what) VALUES (x'3b');
CREATE INDEX i ON log(what)
