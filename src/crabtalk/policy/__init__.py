"""Who may do what: origins of runs, permission rules, modes, approvals and confinement."""
