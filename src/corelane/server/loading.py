"""From the configured bundle to models that can be asked: verify, load, warm every shape, replay the golden rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from corelane import bundle as bundles
from corelane import models as sources
from corelane import tasks
from corelane.engine import Core, Sentinel, Slot, Watch
from corelane.errors import CoreLostError
from corelane.runtimes import twins
from corelane.runtimes.golden import Golden, replay
from corelane.server.model import Model
from corelane.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """What a server serves: models in front of one core that has not been started yet."""

    models: Sequence[Model]
    core: Core
    about: dict[str, Any]


def load_models(settings: Settings, executor: Executor, on_lost: Callable[[CoreLostError], None]) -> Loaded:
    """`num_models_per_server` slots that share one loaded bundle. Raises BundleError and ConfigError."""
    label = sources.bundle_label(settings.compiled_model, settings.model_name, settings.root)
    bundle = bundles.find(settings.path_to_traced_models, label)
    bundles.check_asked_for(bundle, settings.compiled_model)
    bundles.verify(bundle, chip=settings.chip_type, stack=bundle.manifest.stack)
    stale = bundles.stale_keys(bundle, bundles.trace_inputs(settings))
    if stale:
        raise bundles.stale_error(bundle, stale)
    runtime = twins.load(bundle, settings.chip_type)
    manifest = bundle.manifest
    golden = Golden.load(bundle.golden_path, runtime.inputs, runtime.outputs, manifest.tolerance)
    parity = replay(runtime, golden)
    log.info(
        "%s on %s: %d shapes warm, golden rows right within %.1g",
        bundle.label, manifest.stack, len(parity.shapes), parity.error,
    )  # fmt: skip
    if bundle.is_simulated:
        log.warning("%s is SIMULATED: its batches take stated times and no model is computed", bundle.label)

    watch = Watch([Sentinel(row.row, row.complaint) for row in golden.rows], settings.golden_period_ms / 1e3)
    slots = [
        Slot(f"model_{number}", runtime, dict(parity.costs), watch) for number in range(settings.num_models_per_server)
    ]
    core = Core(slots, max_queue_rows=settings.max_queue_rows, on_lost=on_lost)
    task = tasks.get(manifest.task)(
        bundle.tokenizer_path,
        tuple(spec.name for spec in runtime.inputs),
        max(shape.sequence for shape in runtime.shapes),
        {**manifest.task_options, "labels": manifest.labels},
    )
    about = {
        "name": manifest.name,
        "version": manifest.version,
        "task": manifest.task,
        "model": manifest.model,
        "revision": manifest.revision,
        "precision": manifest.precision,
        "stack": manifest.stack,
        "simulated": bundle.is_simulated,
        "shapes": [str(shape) for shape in runtime.shapes],
    }
    models = [Model(slot.name, bundle.label, task, slot, core, executor, about) for slot in slots]
    return Loaded(models, core, {"chip": manifest.chip, "stack": manifest.stack, "bundle": bundle.label})
