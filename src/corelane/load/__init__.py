"""The load driver, `corelane load`: ask every model on every core, check the answers, count what failed.

targets (which endpoints there are) and questions (what to ask, what is right) feed the driver; percentiles
and table turn its tallies into a report; command joins them. It sees a deployment as its clients do.
"""
