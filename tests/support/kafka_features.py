"""Makes the installed kafka-python look like a release in which members of some features have changed."""

from __future__ import annotations

from collections.abc import Mapping

from analyzer.sources.kafka.internals import features
from analyzer.sources.kafka.internals.features import ALL_FEATURES, ATTRIBUTE, Feature, FeatureName

RECORDS_ONLY = ALL_FEATURES - {"whole-batches"}
GONE = "a_name_that_is_gone"


def table_without(*names: FeatureName) -> Mapping[FeatureName, Feature]:
    """Returns the table of features, in which those of `names` need a member that kafka-python lacks."""
    return {
        name: feature._replace(members={**feature.members, "kafka": {GONE: ATTRIBUTE}})
        if name in names
        else feature
        for name, feature in features.FEATURES.items()
    }


def switch_off(*names: FeatureName) -> None:
    """Switches features off in this process: for the code of child processes."""
    features.FEATURES = table_without(*names)
    features.supported_features.cache_clear()
