"""Tasks, workers, tenants, slots and schedules, as one replicated state machine.

Nothing is imported here: a child process that runs tasks starts with four small modules.
"""
