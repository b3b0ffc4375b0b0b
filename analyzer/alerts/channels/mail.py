"""Messages by mail: plain text without markup, over SMTP with TLS."""

from __future__ import annotations

import smtplib
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Literal

from analyzer.alerts.alert_messages import AlertMessage
from analyzer.alerts.channels import SendResult
from analyzer.alerts.channels.plain_texts import plain

MailSecurity = Literal["starttls", "tls", "none"]
SUBJECT_MAX, LINE_MAX = 150, 900  # characters
ANSWER_S, WHOLE_S = 10.0, 30.0  # of one answer of the server, and of a mail
REFUSED = range(500, 600)


@dataclass(frozen=True, slots=True)
class MailServer:
    """A server that takes mail.

    Attributes:
        host: Its name.
        port: Its port.
        sender: The address that mail comes from.
        username: To sign in as; "": without.
        password: Of that user.
        security: How the connection is encrypted.
        tls: For both ways of encryption.
    """

    host: str
    port: int
    sender: str
    username: str = ""
    password: str = field(default="", repr=False)
    security: MailSecurity = "starttls"
    tls: ssl.SSLContext = field(default_factory=ssl.create_default_context, repr=False)

    @contextmanager
    def connected(self) -> Iterator[smtplib.SMTP]:
        """Yields a connection that is signed in. Raises OSError, smtplib.SMTPException."""
        if self.security == "tls":
            smtp: smtplib.SMTP = smtplib.SMTP_SSL(self.host, self.port, timeout=ANSWER_S, context=self.tls)
        else:
            smtp = smtplib.SMTP(self.host, self.port, timeout=ANSWER_S)
        # Each answer has a time-out, and a server may send any number of lines.
        timer = threading.Timer(WHOLE_S, _shut_down, [smtp])
        timer.daemon = True
        timer.start()
        try:
            if self.security == "starttls":
                smtp.starttls(context=self.tls)
            if self.username:
                smtp.login(self.username, self.password)
            yield smtp
        finally:
            timer.cancel()
            with suppress(OSError, smtplib.SMTPException):
                smtp.quit()
            smtp.close()


@dataclass(frozen=True, slots=True)
class MailChannel:
    """Mail to some addresses.

    Attributes:
        server: That takes it.
        to: The addresses.
        lists_all: See `Channel`.
        has_incidents: See `Channel`.
    """

    server: MailServer
    to: Sequence[str]
    lists_all: bool = False
    has_incidents: bool = False

    @property
    def shown(self) -> str:
        return f"email {', '.join(self.to)}"

    def send(self, message: AlertMessage, now_ms: int) -> SendResult:
        """See `Channel.send`."""
        try:
            with self.server.connected() as smtp:
                refused = smtp.send_message(self.mail(message), self.server.sender, list(self.to))
        except smtplib.SMTPResponseException as error:
            return SendResult(False, _answer(error.smtp_code, error.smtp_error))
        except smtplib.SMTPRecipientsRefused as error:
            return SendResult(False, _answer(*next(iter(error.recipients.values()))))
        except TimeoutError:
            return SendResult(False, "it did not answer in time")
        except (OSError, smtplib.SMTPException) as error:
            return SendResult(False, " ".join(str(error).split())[:200] or type(error).__name__)
        not_taken = f"; not for {', '.join(refused)}" if refused else ""
        return SendResult(True, f"the mail server has taken it{not_taken}")

    def mail(self, message: AlertMessage) -> EmailMessage:
        """Returns the mail of a message."""
        mail = EmailMessage()
        # A header that has a line end is refused by the library as well.
        mail["Subject"] = plain(f"[{message.first.severity}] {message.title}", SUBJECT_MAX)
        mail["From"], mail["To"] = self.server.sender, ", ".join(self.to)
        mail["Date"] = format_datetime(datetime.fromtimestamp(message.made_ms / 1000, UTC))
        mail["Message-ID"] = f"<{message.id}@{self.server.sender.rpartition('@')[2]}>"
        mail["Auto-Submitted"] = "auto-generated"
        lines = [message.title, "", *message.lines()]
        mail.set_content("\n".join(plain(line, LINE_MAX) for line in lines) + "\n")
        return mail

    def close(self) -> None:
        """Keeps nothing open."""


def _answer(code: int, text: bytes | str) -> str:
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    return plain(f"{code} {' '.join(shown.split())}", 200)


def _shut_down(smtp: smtplib.SMTP) -> None:
    with suppress(OSError, AttributeError):
        socket.socket.shutdown(smtp.sock, socket.SHUT_RDWR)  # type: ignore[arg-type]  # it is connected
