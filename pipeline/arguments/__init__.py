"""What each verb takes on the command line, a family of verbs a module (standard library only)."""
