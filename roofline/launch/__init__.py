"""From a prediction to a running server: its command or manifests, and the benchmark that measures the prediction.

In: a `Scenario`, a load, and where it runs. Out: a `Launch` with its files, in which every setting of the scenario is
an option of the engine (`specs/servers.yaml`), or an error that says which is not.
"""

from typing import TYPE_CHECKING

from roofline.core.lazy import lazy

if TYPE_CHECKING:
    from roofline.launch.bundle import Launch, Target, launch, launch_command
    from roofline.launch.forecast import Forecast, Interval
    from roofline.specs.servers import SERVERS

__all__ = ["SERVERS", "Forecast", "Interval", "Launch", "Target", "launch", "launch_command"]

__getattr__ = lazy(__name__)
