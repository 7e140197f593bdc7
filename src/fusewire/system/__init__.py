"""What differs from one operating system to the next, one idea a module, each behind functions.

A module asks what there is (``hasattr``), and names a platform (``sys.platform``) only where it
calls that platform's own interface. What was not found is an answer, such as None or a sentence,
never an ImportError: ``fusewire.process.guarantees`` lists what it means for a user.
"""
