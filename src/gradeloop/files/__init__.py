"""Files of users: YAML with line and column, rubrics, and outputs that replace nothing by accident."""
