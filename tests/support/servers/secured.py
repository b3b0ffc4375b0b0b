"""A broker that asks who comes: listeners for passwords and certificates, and rights for each user."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.certificates import Authority, Pair
from tests.support.servers.child import free_port
from tests.support.servers.kafka import NativeKafka

USER, PASSWORD = "analyzer", "pass; w\u00f6rd"
SECURITY = "org.apache.kafka.common.security"
# A name for each listener, and what is spoken there. Who comes without a name may do everything.
PROTOCOLS = {"SASLPLAIN": "SASL_PLAINTEXT", "SASLTLS": "SASL_SSL", "TLS": "SSL"}


class SecuredKafka(NativeKafka):
    """One node with four doors: an open one (`bootstrap`), passwords with and without TLS, certificates.

    `users` are those of SASL PLAIN, with their passwords, for as long as it runs.
    """

    def __init__(self, folder: Path, users: Mapping[str, str]) -> None:
        """Raises Missing."""
        port = free_port()
        self.doors = {name: f"127.0.0.1:{free_port()}" for name in PROTOCOLS}
        self.authority = Authority(folder, "authority")
        super().__init__(folder, port, self._config(port, self.authority.issue("broker"), users))

    def add_scram(self, user: str, password: str) -> None:
        """From now on `user` comes in by SCRAM with this password, and by no earlier one."""
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            told = admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(user, mechanism, password)]
            )
            assert "error" not in str(told).lower() or "None" in str(told), told
        admin.close()

    def allow(self, user: str, *, topic: str = "", group: str = "", operation: str = "READ") -> None:
        """Give `user` (a name, or "CN=..." of a certificate) one right."""
        self._rights("create_acls", user, topic, group, operation)

    def forbid(self, user: str, *, topic: str = "", group: str = "", operation: str = "READ") -> None:
        """Take it away again."""
        self._rights("delete_acls", user, topic, group, operation)

    def _rights(self, act: str, user: str, topic: str, group: str, operation: str) -> None:
        kind, name = (ResourceType.TOPIC, topic) if topic else (ResourceType.GROUP, group)
        right = ACL(
            principal=f"User:{user}",
            host="*",
            operation=ACLOperation[operation],
            permission_type=ACLPermissionType.ALLOW,
            resource_pattern=ResourcePattern(kind, name),
        )
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        getattr(admin, act)([right])
        admin.close()

    def _config(self, port: int, own: Pair, users: Mapping[str, str]) -> dict[str, Any]:
        controller = f"127.0.0.1:{free_port()}"
        open_door = f"PLAINTEXT://127.0.0.1:{port}"
        doors = ",".join([open_door, *(f"{name}://{at}" for name, at in self.doors.items())])
        spoken = ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items())
        passwords = " ".join(f'user_{user}="{password}"' for user, password in users.items())
        logins = {
            "plain": f"{SECURITY}.plain.PlainLoginModule required {passwords};",
            "scram-sha-256": f"{SECURITY}.scram.ScramLoginModule required;",
            "scram-sha-512": f"{SECURITY}.scram.ScramLoginModule required;",
        }
        return {
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"{doors},CONTROLLER://{controller}",
            "advertised.listeners": doors,
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{spoken}",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            **{
                f"listener.name.{door.lower()}.{mechanism}.sasl.jaas.config": login
                for door in ("SASLPLAIN", "SASLTLS")
                for mechanism, login in logins.items()
            },
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(own.both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.file),
            "listener.name.tls.ssl.client.auth": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
