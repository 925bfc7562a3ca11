"""Properties of a whole node, in this process: any order of steps, any cut of the bytes, any value of a type.

Owns a model of what exchanges, bindings and queues mean (`model`), a node without sockets and with a clock of the
tests' own (`node`), and two small peers without sockets (`peer091`, `peer10`). Nothing here opens a port or sleeps.
"""
