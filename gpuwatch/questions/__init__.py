"""The five questions that are answered for each engine each second, and the facts that rules share.

Each module holds functions of a Window; rules ask them through `window.once(question)`, so that each is answered once a
tick. A question that the data cannot answer raises Missing.
"""
