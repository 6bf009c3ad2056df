"""Commands and messages inside the caller's own SQL transaction, for every driver.

``postgres`` and ``sqlite`` turn a call into statements and the rows into a result; they do no I/O.
``drive`` runs them on a connection, sync or async. ``commands`` and ``messages`` are what callers see;
none of them commits or rolls back, because the transaction is the caller's.
"""
