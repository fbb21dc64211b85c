"""From the usage stream to records and their sums, each event once; and corrections and reports of usage.

A batch is recorded in one transaction and acknowledged after it, so a crash loses nothing and bills nothing twice. What
a period costs in all is in ``charges``.
"""
