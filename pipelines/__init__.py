"""DAG files and the planner and runner that execute them."""
