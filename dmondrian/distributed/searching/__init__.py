"""Search: candidates learn one stream side by side, and the worse half is given up again and again.

Successive halving (Jamieson and Talwalkar, 2016) by progressive loss: each row is forecast before
it is learned, so one pass ranks settings without a validation split, and what a candidate has
learned is not learned again when it goes on. Plain Dask: the candidates are known at the start and
the rounds are few, so there is nothing for a sampler to propose (Optuna), and a study that talks to
workers as they finish would make the winner depend on their speed.
"""
