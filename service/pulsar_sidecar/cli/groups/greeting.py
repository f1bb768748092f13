"""``pulsar-sidecar greetings``."""

from pulsar_sidecar.cli.command_groups import EXIT_CODES, new_group
from pulsar_sidecar.cli.connecting import Context, Output, show_answer

app = new_group("greetings", "Greet in the name of the cluster.")


@app.command("show", epilog=EXIT_CODES)
def show(ctx: Context, name: str, form: Output = None) -> None:
    """Greet someone.

    Example: pulsar-sidecar greetings show Ada
    """
    show_answer(ctx, form, "GET", f"/admin/v2/greeting/{name}", lines=lambda answer: [answer["text"]])
