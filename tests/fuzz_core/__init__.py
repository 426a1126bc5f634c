"""Fuzzers of the compiled core: frames and columns that are whole in form and wrong in their numbers - sections,
counts, orders, offsets. A run takes a random source and nothing else; its seed repeats it.

A checksum stops random bytes at the door, so the grammar here writes every frame by the documented layout, with a right
checksum, and then says in it what no honest peer says.
"""

from . import calls, columns, dispatcher, fields, receiver, repl_link, rows

FUZZERS = {
    "receiver": receiver.run,
    "dispatcher": dispatcher.run,
    "rows": rows.run,
    "columns": columns.run,
    "calls": calls.run,
    "lane": repl_link.run,
    "fields": fields.run,
}
