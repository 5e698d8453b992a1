"""Sources of records: one file for each kind of object that has records, and the table of the kinds in open_records.

Each makes :class:`dsinga.data.Column` objects, which all that reads records takes.
"""
