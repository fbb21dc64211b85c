"""Makes invoices of ended periods, corrects and ends them, and previews what they would be.

Each invoice is one transaction: lines, credit, tax, postings, number, and the payment that it queues. Previews
(``drafts``, ``what_if``) write nothing. It computes no price and sends nothing to Stripe.
"""
