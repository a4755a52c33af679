"""From raw rows to a judged summary: metrics, window, arrivals, objectives, verdict. Pure functions of a run
folder.
"""
