"""A server for compiled models: the Open Inference Protocol over REST and gRPC.

Nothing but the command imports this folder, and it needs the extra ``server``. Requests are
hostile; models are the operator's own.
"""
