"""Sources of records, in one file for each kind of object; open_records has the table of the kinds.

Each makes :class:`dsinga.data.Column` objects, which all readers of records accept.
"""
