-- See `routines/break.sql`.
CALL {p}_break_1($1);
