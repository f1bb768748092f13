"""Groups of commands to which several features contribute.

They list their commands by name, so that ``--help`` does not depend on the order of imports.
"""

from typing import Any

from pulsar_sidecar.cli.command_groups import CommandGroup, new_group


class _SortedGroup(CommandGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx))


topics_app = new_group("topics", "Delete topics in two phases, and cancel delayed messages.", cls=_SortedGroup)
namespaces_app = new_group(
    "namespaces", "Delete namespaces; set deduplication (PIP-6) and pausing of dispatch (PIP-299).", cls=_SortedGroup
)
deduplication_app = new_group(
    "deduplication",
    "Show how well messages are deduplicated (PIP-6): state, cost, and stored duplicates.\n\n"
    "To switch it on and off: topics set-deduplication, namespaces set-deduplication. To publish a file exactly "
    "once: publish.",
    cls=_SortedGroup,
)
