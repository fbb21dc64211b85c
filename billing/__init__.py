"""Usage into money: README.md has every form of a token on its way to an invoice line.

Usage events become records, sums by hour and ledger transfers (``usage.recording``); a period's sums become lines
(``charges.period``), lines an invoice (``invoicing.finalizing``), and what is due of it a payment
(``payments.charging``). Each step may be repeated after a crash.
"""
