"""What pins this: which cursor, policy or copy keeps bytes on bookies, and what each remedy frees."""
