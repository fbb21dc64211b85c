"""Makes invoices of ended periods, corrects and ends them, and previews what they would be.

Each invoice is one transaction: lines, credit, tax, postings, the payment that it queues, and its number. Previews
(``drafts``, ``what_if``) write nothing. It computes no price and sends nothing to Stripe.
"""
