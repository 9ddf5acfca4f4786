"""megatron-core's own ways in: its training entry point, and a model with its optimizer to be stepped by hand.

Both take the command line of repro.cluster.arguments through megatron-core's parser. Written for 0.19.2; megatron is
imported inside functions. Not here: what happens around the training loop (repro.cluster.session).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repro.cluster.loop import MegatronLoop
    from repro.cluster.session import Session


def configure(words: list[str]) -> Any:
    """Parses and checks a command line; returns megatron-core's configuration. Once a process."""
    sys.argv = [sys.argv[0], *words]
    from megatron.core.datasets import utils as dataset_utils
    from megatron.training.argument_utils import hybrid_config_from_args, pretrain_cfg_container_from_args
    from megatron.training.arguments import parse_and_validate_args

    parsed = parse_and_validate_args(args_defaults={})
    # Start-up runs `make` in megatron-core's own folder and exits without its makefile, which the wheel does not
    # have. What it builds indexes megatron-core's blends, which are not used here.
    dataset_utils.compile_helpers = lambda: None
    return pretrain_cfg_container_from_args(parsed, hybrid_config_from_args(parsed))


def pretrain(session: Session, loop: MegatronLoop, words: list[str]) -> bool:
    """Trains a segment; returns whether megatron-core's loop was left before the segment's end."""
    config = configure(words)
    from megatron.core.enums import ModelType
    from megatron.training import training

    session.install(training)
    try:
        training.pretrain(config, loop.datasets, ModelType.encoder_or_decoder, loop.forward_step)
    except SystemExit as left:
        if left.code not in (0, None):
            raise
        return not session.is_complete
    return False


def build_model(words: list[str]) -> tuple[list[Any], Any, Any, Any]:
    """(model chunks, optimizer, scheduler, megatron-core's arguments), fresh or loaded as the command line says."""
    config = configure(words)
    from megatron.core.enums import ModelType
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.training import get_args
    from megatron.training.initialize import initialize_megatron
    from megatron.training.training import setup_model_and_optimizer

    initialize_megatron()
    model, optimizer, scheduler = setup_model_and_optimizer(
        ModelType.encoder_or_decoder,
        cfg_container=config,
        checkpointing_context={},
        pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
    )
    return model, optimizer, scheduler, get_args()
