"""Management against live nodes."""
