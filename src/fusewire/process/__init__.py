"""Keep engines at arm's length: child processes, framed bytes, the guard around engine calls."""
