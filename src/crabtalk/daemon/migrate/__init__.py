"""`crabtalkd migrate`: copies all stored data from a home's files into a database, or back."""
