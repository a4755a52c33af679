def report():
    pass
