"""`crabtalkd migrate`: all that is kept, from the files of a home into a database, and back."""
