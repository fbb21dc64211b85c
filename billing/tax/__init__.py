"""Who sells, who buys, and the one tax rate of each line.

Rates are the operator's own table; no service is asked, and only the form of a VAT id is checked. Tax is computed here
and posted in ``invoicing``.
"""
