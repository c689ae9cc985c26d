"""Statistical laws and identities that any correct Mondrian forest obeys."""
