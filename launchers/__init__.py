"""What talks to a scheduler and what runs beside the ranks: submission through submitit, and the supervisors."""
