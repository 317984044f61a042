"""The faults that every host can have, and all faults by their names."""

from __future__ import annotations

from unit.gpushim.doctor import cdi_states, host_states, own_states

STATES = [*host_states.STATES, *own_states.STATES, *cdi_states.STATES]
BY_NAME = {state.name: state for state in STATES}
