"""A broker with authentication and ACLs: listeners for passwords and for certificates."""

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
# Security protocol by listener.
PROTOCOLS = {"SASLPLAIN": "SASL_PLAINTEXT", "SASLTLS": "SASL_SSL", "TLS": "SSL"}


class SecuredKafka(NativeKafka):
    """One node with four listeners: open (`bootstrap`), passwords without and with TLS, certificates.

    `users` are the users of SASL PLAIN, with their passwords. Clients of the open listener may do everything.
    """

    def __init__(self, folder: Path, users: Mapping[str, str]) -> None:
        """Raises Missing."""
        port = free_port()
        self.listeners = {name: f"127.0.0.1:{free_port()}" for name in PROTOCOLS}
        self.authority = Authority(folder, "authority")
        super().__init__(folder, port, self._config(port, self.authority.issue("broker"), users))

    def add_scram(self, user: str, password: str) -> None:
        """Sets the password of `user` for SCRAM."""
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            result = admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(user, mechanism, password)]
            )
            assert "error" not in str(result).lower() or "None" in str(result), result
        admin.close()

    def allow(self, user: str, *, topic: str = "", group: str = "", operation: str = "READ") -> None:
        """Grants `user` (a name, or "CN=..." of a certificate) one operation."""
        self._change_acl("create_acls", user, topic, group, operation)

    def forbid(self, user: str, *, topic: str = "", group: str = "", operation: str = "READ") -> None:
        """Revokes what `allow` granted."""
        self._change_acl("delete_acls", user, topic, group, operation)

    def _change_acl(self, method: str, user: str, topic: str, group: str, operation: str) -> None:
        kind, name = (ResourceType.TOPIC, topic) if topic else (ResourceType.GROUP, group)
        acl = ACL(
            principal=f"User:{user}",
            host="*",
            operation=ACLOperation[operation],
            permission_type=ACLPermissionType.ALLOW,
            resource_pattern=ResourcePattern(kind, name),
        )
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        getattr(admin, method)([acl])
        admin.close()

    def _config(self, port: int, own: Pair, users: Mapping[str, str]) -> dict[str, Any]:
        controller = f"127.0.0.1:{free_port()}"
        open_listener = f"PLAINTEXT://127.0.0.1:{port}"
        listeners = ",".join([open_listener, *(f"{name}://{at}" for name, at in self.listeners.items())])
        protocols = ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items())
        passwords = " ".join(f'user_{user}="{password}"' for user, password in users.items())
        logins = {
            "plain": f"{SECURITY}.plain.PlainLoginModule required {passwords};",
            "scram-sha-256": f"{SECURITY}.scram.ScramLoginModule required;",
            "scram-sha-512": f"{SECURITY}.scram.ScramLoginModule required;",
        }
        return {
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"{listeners},CONTROLLER://{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,{protocols}",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            **{
                f"listener.name.{listener.lower()}.{mechanism}.sasl.jaas.config": login
                for listener in ("SASLPLAIN", "SASLTLS")
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
