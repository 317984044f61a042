"""More of vulnerable.py: what the launcher believes."""

from __future__ import annotations

from e2e import test_launcher_told
from e2e.vulnerable import Build

LAUNCHER = "shim/gpushim/launcher"
STRANGER = test_launcher_told.test_what_a_stranger_wrote_down_is_not_executed
STATE = ("state", "x")
NOT_EXECUTED = '(tmp_path / "owned").exists()'
ASKS = "node.gpus() == 3"

BUILDS = {
    "T-told executes what anybody wrote down": Build(
        {LAUNCHER: ('[ -O "$_file" ] && [ -O "$_state" ]', '[ -O "$_state" ]')},
        STRANGER,
        NOT_EXECUTED,
        {"whose": "file", "words": STATE},
    ),
    "T-told executes what lies in anybody's directory": Build(
        {LAUNCHER: ('[ -O "$_file" ] && [ -O "$_state" ]', '[ -O "$_file" ]')},
        STRANGER,
        NOT_EXECUTED,
        {"whose": "directory", "words": STATE},
    ),
    "T-told follows a link": Build(
        {LAUNCHER: (' && [ ! -L "$_file" ]', "")}, STRANGER, NOT_EXECUTED, {"whose": "link", "words": STATE}
    ),
    "T-told asks which is newer": Build(
        {LAUNCHER: (' || [ "$_toml" -ot "$_file" ]', "")},
        test_launcher_told.test_a_configuration_with_an_old_time_counts,
        ASKS,
    ),
    "T-told a look that fails is a no": Build(
        {
            LAUNCHER: (
                '  if [ -f "$_config" ] &&',
                '  [ -f "$_config" ] || exec "$_low" "$@"\n  if [ -f "$_config" ] &&',
            )
        },
        test_launcher_told.test_a_look_that_fails_never_costs_the_gpus,
        "nvidia0",
        {"file": "bundle/config.json", "error": "EIO"},
    ),
    "T-told goes on without its words": Build(
        {LAUNCHER: ("_state/triggers\n", "_state/triggers\n  [ -f $_triggers ] || _triggers=''\n")},
        test_launcher_told.test_what_is_gone_harms_one_create,
        ASKS,
        {"name": "triggers"},
    ),
}
