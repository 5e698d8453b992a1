"""Sources of records, in one file for each kind of object; open_records has the table of the kinds."""
