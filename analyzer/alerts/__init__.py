"""Alerts: events of the outbox are routed to destinations, gathered into messages, and sent.

outbox           events, written by the transactions of what happened      kernel/outbox.py
▼ route()        messages that gather events, by destination and kind      routing.py, message_rows.py
▼ Deliverer      messages that are due, each tried until acknowledged      deliverer.py
▼ Channel.send   one request, mail or record                               channels/
"""
