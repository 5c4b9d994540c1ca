"""The revisions of the schema as Alembic scripts, one file each, in the order they were released.

A script says what was changed in its own words and imports no model, for models go on changing. A
column that is added may be null, for SQLite adds no other kind.
"""
