"""What an invoice is: its tables, its state as the fold of its events, its number and chain of hashes, and its views.

Payments and the customer's balance change it here, by one more event. Making, crediting, voiding and writing off an
invoice is in ``invoicing``, which may burn credit and start a payment.
"""
