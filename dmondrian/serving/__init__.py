"""Serving: a model behind HTTP, which answers forecasts and learns labels that come later.

The stack is uvicorn with httptools and uvloop, an ASGI server that is maintained, and no framework
above it: there are five fixed paths, and what a framework would check of a body is checked by the
encoding of columns in any case, with the messages of `dmondrian score`. ``benchmarks/serving.py``
measures it beside the same trees behind FastAPI.

Relies on the extra ``serve``, which is imported when a server starts. Promises that an answer comes
whole from one state of the model, and names it; that rows are prepared by the code which prepares
frames, and scored by that which writes scores; and that a refused request changes nothing.
"""
